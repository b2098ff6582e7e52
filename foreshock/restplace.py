"""Where the api is and with which key, for the commands that speak to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.errors import ConfigError

if TYPE_CHECKING:
    from api.client import ApiClient

__all__ = ["ConfigOption", "JsonOption", "KeyFileOption", "UrlOption", "open_client"]

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Where the api is; else $FORESHOCK_URL, else as the settings say.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file", metavar="FILE", help="File with the API key; else $FORESHOCK_KEY is used."
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file, as elsewhere.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON as the api gives it.")]


def open_client(url: str | None, key_file: Path | None, config: Path | None) -> ApiClient:
    """Open the client that the options, the environment and the settings name.

    Raises
    ------
    ConfigError
        If the settings or the key file cannot be used.
    RestError
        If the address is none.
    """
    from api.client import ApiClient  # noqa: PLC0415 - heavy, as in foreshock.cli
    from foreshock.config import rest_place  # noqa: PLC0415
    from foreshock.logs import set_up_logging  # noqa: PLC0415

    set_up_logging("error", "auto")
    place, key = rest_place(url, config)
    if key_file is not None:
        try:
            key = key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"The key file {key_file} cannot be read.") from None
    return ApiClient(place, key)
