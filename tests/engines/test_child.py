"""The child process: however it ends, the parent gets one event or one error."""

import json
import sys
import time

import pytest

from blockforge.core.errors import BuildError, UnavailableError
from blockforge.engines.child import run_job

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
    start = time.monotonic()
    with pytest.raises(BuildError, match=r"no result after 0\.5 s"):
        run("while True: emit(event='step'); time.sleep(0.01)", timeout_seconds=0.5)
    assert time.monotonic() - start < 10


def test_an_exception_of_the_listener_ends_the_child():
    def fail(event):
        raise KeyError("listener")

    command = (sys.executable, "-c", PRELUDE + "emit(event='step'); time.sleep(60)")
    start = time.monotonic()
    with pytest.raises(KeyError):
        run_job("x", {}, fail, command=command)
    assert time.monotonic() - start < 10


def test_the_real_child_speaks_only_events_on_its_channel():
    """Whatever native code prints to stdout must not mix with events: the child moves its own stdout away."""
    events = []
    request = {"job": "tensorrt", "runtime": "tensorrt"}  # not installed here
    with pytest.raises(UnavailableError, match="tensorrt"):
        run_job("x", request, events.append)
    assert json.dumps(events) == "[]"
