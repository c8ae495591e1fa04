"""The child process: however it ends, the parent gets one event or one error."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockforge.core.errors import BuildError, UnavailableError
from blockforge.engines.child import run_job
from blockforge.engines.tensorrt_api import is_installed

PRELUDE = "import json, os, sys, time\nrequest = json.loads(sys.stdin.readline())\n"
PRELUDE += "def emit(**event): print(json.dumps(event), flush=True)\n"


def run(body, events=None, **rest):
    command = (sys.executable, "-c", PRELUDE + body)
    hear = events.append if events is not None else lambda event: None
    return run_job("engine x", {"job": "test", "n": 3}, hear, command=command, **rest)


def test_the_last_event_is_the_result():
    events = []
    done = run("emit(event='step', done=1); emit(event='done', n=request['n'])", events)
    assert done == {"event": "done", "n": 3}
    assert events == [{"event": "step", "done": 1}]


def test_a_reported_error_keeps_its_class_and_words():
    body = "emit(event='failed', error='UnavailableError', asked='a', found='b', fix='c')"
    with pytest.raises(UnavailableError, match=r"^a: b\. c$"):
        run(body)


ERRORS = "emit(event='log', severity='ERROR', text='Assertion failed:\\n no plugin'); "


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.abort()", "SIGABRT"),
        (ERRORS + "os.abort()", "SIGABRT; its last words: Assertion failed: no plugin"),
        (
            "os.write(2, b'terminate called\\n'); os.abort()",
            "SIGABRT; its last words: terminate called",
        ),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "SIGKILL.*out of memory"),
        ("sys.exit(3)", "ended with 3"),
        ("sys.exit(0)", "ended with 0"),
        ("raise RuntimeError('boom')", "ended with 1; its last words: .*RuntimeError: boom"),
    ],
)
def test_a_death_without_a_result_says_how_and_in_whose_words(body, words):
    with pytest.raises(BuildError, match=words) as error:
        run(body)
    assert str(error.value).startswith("engine x: the builder process")


def test_noise_on_the_event_channel_is_no_event():
    assert run("print('noise', flush=True); emit(event='done')") == {"event": "done"}


def test_a_child_that_never_reads_is_no_hang():
    with pytest.raises(BuildError):
        run_job("x", {"fill": "y" * 10**6}, lambda e: None, command=(sys.executable, "-c", ""))


def test_time_is_up_even_while_the_child_talks():
    talk = "for _ in range(6000): emit(event='step'); time.sleep(0.01)\nemit(event='done')"
    with pytest.raises(BuildError, match=r"no result after 0\.5 s"):
        run(talk, timeout_seconds=0.5)


def is_running(pid):
    """Whether a process lives (Linux): gone and not yet collected both mean no."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid, seconds=60):
    end = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def test_an_exception_of_the_listener_ends_the_child(tmp_path):
    pids = []

    def fail(event):
        pids.append(event["pid"])
        raise KeyError("listener")

    ended = tmp_path / "ended"  # by itself
    body = f"emit(event='step', pid=os.getpid()); time.sleep(60); open({str(ended)!r}, 'w')"
    with pytest.raises(KeyError):
        run_job("x", {}, fail, command=(sys.executable, "-c", PRELUDE + body))
    assert not is_running(pids[0]) and not ended.exists()


GUARD = "import os, sys, threading, time; from blockforge.engines import build_child as b; "


def test_linux_ends_the_child_of_a_dead_parent():
    """Even where native code holds every thread: this one only sleeps, and reads no lifeline."""
    child = (
        GUARD + "b._die_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(300)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert ends(pid)


def test_a_closed_lifeline_ends_the_child():
    body = (
        GUARD + "threading.Thread(target=b._watch_lifeline, daemon=True).start(); time.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", body], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(timeout=120) == 1


def test_native_output_does_not_mix_with_events():
    body = (
        "import os; from blockforge.engines import build_child, tensorrt_build;"
        "tensorrt_build.build_plan = lambda request, emit: {'wrote': os.write(1, b'noise')};"
        "build_child.main()"
    )
    done = run_job("x", {"job": "tensorrt"}, print, command=(sys.executable, "-c", body))
    assert done == {"event": "done", "wrote": 5}


@pytest.mark.skipif(is_installed("tensorrt"), reason="full TensorRT is installed here")
def test_a_missing_library_comes_from_the_real_child_as_it_is():
    request = {"job": "tensorrt", "runtime": "tensorrt"}
    with pytest.raises(UnavailableError, match="tensorrt"):
        run_job("x", request, print)
