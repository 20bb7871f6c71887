"""`fedstale ui [FOLDER…]`: a live page over runs, for this machine alone."""

from pathlib import Path
from typing import Annotated

import typer

from fedstale.core import BadInput
from fedstale.lab.runs.named import store_of


def ui(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Stores of runs, folders of `reproduce`, federations; `runs` if left out, also before it exists."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8642,
    control: Annotated[
        bool, typer.Option("--control", help="Let the page stop and resume runs; else it only reads.")
    ] = False,
) -> None:
    """Show runs in the browser while they are computed; nothing leaves this machine."""
    try:
        from fedstale.view.live import server
        from fedstale.view.live.control import Control
        from fedstale.view.live.federation import is_federation
        from fedstale.view.live.index import Index
        from fedstale.view.page.page import library
    except ImportError as error:
        raise BadInput(f"the page needs {error.name}: pip install 'fedstale[ui]'") from None
    library()  # say now what is missing
    named = [folder.resolve() for folder in folders or [Path("runs")]]
    federations = [folder for folder in named if is_federation(folder)]
    places = [store_of(folder) for folder in named if folder not in federations]
    sock, allowed = server.listen(port), Control() if control else None
    token = f"/#token={allowed.token}" if allowed else ""
    print(f"http://127.0.0.1:{sock.getsockname()[1]}{token}  (Ctrl-C ends it)", flush=True)
    server.serve(server.Page(Index(places, federations), ", ".join(map(str, named)), allowed), sock)
