"""`learnloop data prepare`: an inbox and questions about it, prepared once and reused."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from learnloop_service.app.cli.data import print_version
from learnloop_service.app.cli.options import AsJson, DataDir, config_file
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.stage_bar import Advance, stage_bar
from learnloop_service.app.cli.terminal import Failure, failing_on, print_json, results

if TYPE_CHECKING:
    from learnloop_mail.preparation.prepare import Preparation
    from learnloop_service.app.datasets.store import Prepared
    from learnloop_service.app.settings import Settings

_OptionalName = Annotated[
    str | None,
    typer.Argument(help="Name of the data: letters, digits, '-' and '_'. \\[default: that of the file]"),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        parser=config_file,
        metavar="FILE",
        help="YAML file with these settings, such as `max_messages: 1`; flags override it.",
    ),
]
_Emails = Annotated[
    list[str] | None,
    typer.Option(
        help="mbox, Maildir or .eml files or folders; or a data set: a folder, a Parquet or JSON Lines file, or "
        "its id on the Hugging Face hub, such as corbt/enron-emails. Can be repeated."
    ),
]
_Questions = Annotated[
    str | None,
    typer.Option(
        help="templates, llm, none, or a data set such as corbt/enron_emails_sample_questions. \\[default: templates]"
    ),
]
_Inbox = Annotated[str | None, typer.Option(help="Only emails from or to this address, and questions about them.")]
_MaxEmails = Annotated[int | None, typer.Option(min=1, help="Maximum number of emails.")]
_MaxBodyCharacters = Annotated[int | None, typer.Option(min=1, help="Leave longer emails out.")]
_MaxRecipients = Annotated[int | None, typer.Option(min=1, help="Leave emails to more people out.")]
_DropCopies = Annotated[
    bool | None, typer.Option("--drop-copies", help="Keep one of emails with the same sender, subject and body.")
]
_MaxMessages = Annotated[
    int | None, typer.Option(min=1, help="Leave out questions that need more emails. \\[default: 1]")
]
_ExcludeQuestions = Annotated[
    list[int] | None,
    typer.Option(help="Leave out the question with this id. Can be repeated. \\[default: ART-E's known bad ones]"),
]
_MinRealism = Annotated[
    float | None, typer.Option(min=0, max=1, help="Leave out questions that are rated less realistic.")
]
_Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of training questions.")]
_HeldOutLimit = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of questions for validation, and for test.")
]
_ShuffleSeed = Annotated[
    int | None, typer.Option(min=0, help="Shuffle the questions. \\[default: the order of the source]")
]
_QuestionCount = Annotated[int | None, typer.Option(min=3, help="Number of questions to make. \\[default: 300]")]
_QuestionSeed = Annotated[int | None, typer.Option(min=0, help="Decides which emails they are about. \\[default: 0]")]
_QuestionModel = Annotated[
    str | None,
    typer.Option(help="Writes them: a listed model or PROVIDER/MODEL. \\[default: the first listed]"),
]


def prepare(
    name: _OptionalName = None,
    config: _Config = None,
    emails: _Emails = None,
    questions: _Questions = None,
    inbox: _Inbox = None,
    max_emails: _MaxEmails = None,
    max_body_characters: _MaxBodyCharacters = None,
    max_recipients: _MaxRecipients = None,
    drop_copies: _DropCopies = None,
    max_messages: _MaxMessages = None,
    exclude_questions: _ExcludeQuestions = None,
    min_realism: _MinRealism = None,
    limit: _Limit = None,
    held_out_limit: _HeldOutLimit = None,
    shuffle_seed: _ShuffleSeed = None,
    question_count: _QuestionCount = None,
    question_seed: _QuestionSeed = None,
    question_model: _QuestionModel = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Build an inbox and questions about it, once: what was made of the same inputs before is used again."""
    from learnloop_mail.preparation.recipe import BadRecipe, read_recipe

    options = dict(locals())
    flags = {key: options[key] for key in _RECIPE_FLAGS}
    with failing_on(BadRecipe):
        recipe = read_recipe(config, flags)
    _report(prepared(recipe, settings_with(data_dir=data_dir)), as_json)


def prepared(recipe: Any, settings: "Settings") -> "Prepared":
    """Prepare the data of a recipe, with a progress bar. Raises Failure."""
    with stage_bar() as advance, _data_failures():
        return _preparation(recipe, settings, advance).run()


_RECIPE_FLAGS = (
    "name", "emails", "questions", "inbox", "max_emails", "max_body_characters", "max_recipients", "drop_copies",
    "max_messages", "exclude_questions", "min_realism", "limit", "held_out_limit", "shuffle_seed", "question_count",
    "question_seed", "question_model",
)  # fmt: skip


def _preparation(recipe: Any, settings: "Settings", advance: Advance) -> "Preparation":
    from learnloop_mail.preparation.prepare import Hub, Preparation
    from learnloop_mail.preparation.question_writer import QuestionWriter
    from learnloop_service.app.datasets.store import DatasetStore
    from learnloop_service.app.listed_models import ListedModels

    store = DatasetStore(settings.data_dir)
    token = settings.hf_token.get_secret_value() if settings.hf_token else None
    hub = Hub(str(settings.hf_endpoint).rstrip("/"), token, store.folder / "hub")
    writer = QuestionWriter(ListedModels(settings), store.folder / "written")
    return Preparation(recipe, store, hub, writer.write, advance)


@contextmanager
def _data_failures() -> Iterator[None]:
    """Turn expected errors into a Failure."""
    from learnloop_mail.preparation.recipe import BadRecipe
    from learnloop_mail.preparation.table_files import DatasetError
    from learnloop_mail.reading.importer import MailSourceError
    from learnloop_service.app.datasets.hub import HubError
    from learnloop_service.app.datasets.model_writer import NotWritten
    from learnloop_service.app.datasets.store import StoreError
    from learnloop_service.environment.email_search.inbox import InboxError

    try:
        yield
    except (BadRecipe, DatasetError, HubError, InboxError, MailSourceError, NotWritten, StoreError) as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"cannot write the data: {error}") from error


def _report(prepared: "Prepared", as_json: bool) -> None:
    if as_json:
        print_json({**asdict(prepared.version), "done": list(prepared.stages)})
        return
    print_version(prepared.version)
    stages = " and ".join(prepared.stages)
    results.print(f"\nMade: {stages}." if stages else "\nNothing to do: the same inputs were prepared before.")
