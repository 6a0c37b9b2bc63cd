"""`learnloop inbox import`: real mail in an inbox of the data directory."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from learnloop_service.app.cli.inbox import Name, path_of, print_figures, question_figures, question_sizes
from learnloop_service.app.cli.options import AsJson, DataDir
from learnloop_service.app.cli.terminal import failing_on, print_json, results

_SHOWN_BROKEN = 5


def import_(
    name: Name,
    sources: Annotated[
        list[Path], typer.Argument(help="mbox files (also .gz), Maildirs, .eml files, or folders of these.")
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Import real email into an inbox. Emails that it already has are skipped; unreadable ones are reported.

    Questions that the inbox already has are checked: each source must be an email of the inbox.
    """
    from learnloop_mail.reading.importer import MailSourceError, import_mail
    from learnloop_service.environment.email_search.inbox import InboxError

    path = path_of(name, data_dir)
    with failing_on(MailSourceError, InboxError):
        report = import_mail(sources, path)
    sizes = question_sizes(name, path)
    if as_json:
        print_json({"inbox": name, "path": str(path), **asdict(report), "questions": sizes})
        return
    figures: dict[str, Any] = {
        key.replace("_", " "): value for key, value in asdict(report).items() if isinstance(value, int)
    }
    figures |= {"unreadable": len(report.broken), "seconds": f"{report.seconds:.1f}"}
    print_figures(figures | question_figures(sizes))
    for mail in report.broken[:_SHOWN_BROKEN]:
        location = mail.file if mail.number is None else f"{mail.file} (email {mail.number})"
        results.print(f"  unreadable: {location}: {mail.reason}")
    if len(report.broken) > _SHOWN_BROKEN:
        results.print(f"  and {len(report.broken) - _SHOWN_BROKEN} more (--json lists them)")
    results.print(f'\nAsk about it: learnloop ask --model MODEL --inbox {name} "QUESTION"')
