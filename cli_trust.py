"""The commands about trust: who made a bundle, and is it whole?"""

from pathlib import Path
from typing import Annotated

import typer

from . import console
from .cli_tools import BundleArgument, JsonOption


def sign(
    bundle: BundleArgument,
    key: Annotated[
        Path, typer.Option("--key", metavar="PRIVATE.pem", help="An Ed25519 key, as OpenSSL makes.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Sign a bundle's manifest, and with it every file, after comparing each with its hash."""
    from .core.bundle import MANIFEST, Bundle
    from .core.signing import sign as write_signature

    opened = Bundle.open(bundle)
    opened.verify()
    path = write_signature(opened.path / MANIFEST, key)
    console.emit({"bundle": str(bundle), "signature": str(path)}, lambda: f"{path}\n", as_json)


def verify(
    bundle: BundleArgument,
    trusted: Annotated[
        list[Path] | None,
        typer.Option(
            "--trusted", metavar="PUBLIC.pem", help="Who may have signed it; repeat for several."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every file of a bundle with its hash, and its signature with the keys that are trusted.

    Exit 5 if one differs, is missing, or is not the manifest's.
    """
    from .core.bundle import Bundle
    from .core.signing import SIGNATURE

    opened = Bundle.open(bundle)
    opened.verify(trusted or ())
    opened.check_strangers()
    count = len(opened.manifest.files)
    signed = (opened.path / SIGNATURE).is_file()
    found = {
        "bundle": str(bundle),
        "files": count,
        "signed": signed,
        "trusted": [str(p) for p in trusted or ()],
    }
    by = (
        "signed by a trusted key"
        if trusted
        else "signed, by whom was not asked"
        if signed
        else "not signed"
    )
    console.emit(found, lambda: f"{count} files as the manifest says; {by}\n", as_json)


COMMANDS = (sign, verify)
