"""Numbers, times and durations have one form on all pages, and the form of the command line."""

from pathlib import Path

from learnloop_service.app.cli.charts import percent
from tests.browser.visit import Visit

SHOWN = {
    "number(0.0082)": "0.01",
    "number(-0.0034)": "0.00",
    "number(-0.1)": "\u22120.10",
    "number(1234.5)": "1,234.50",
    "number(0.000023, 4)": "0.000023",
    "number(-0.000023, 4)": "\u22120.000023",
    "number(null)": "\u2013",
    "signed(0.25)": "+0.25",
    "signed(-0.25)": "\u22120.25",
    "signed(0.001)": "0.00",
    "whole(25543.4)": "25,543",
    "compact(-25543)": "\u221225.5K",
    "dollars(1234.5)": "$1,234.50",
    "dollars(0.0123)": "$0.0123",
    "duration(4.24)": "4.2 s",
    "duration(9.96)": "10 s",
    "duration(59.6)": "1 min",
    "duration(80)": "1 min 20 s",
    "duration(3725)": "1 h 2 min",
    "counted(1, 'email')": "1 email",
    "counted(2000, 'email')": "2,000 emails",
    "exactMoment('2026-11-24T10:20:30').includes('10:20:30')": True,
}
SHARES = [0.625, 0.125, 0.875, 0.145, 0.335, 0.005, 0.995, 1.0, 0.0, 1 / 3, 5 / 8, 1 / 24, 15 / 24]


async def test_numbers_times_and_durations_have_one_form(visit: Visit) -> None:
    script = (Path(__file__).parents[2] / "app/dashboard/static/format.js").read_text(encoding="utf-8")
    await visit.page.goto("about:blank")
    names = ["number", "signed", "whole", "compact", "percent", "dollars", "duration", "counted", "exactMoment"]
    module = script.replace("export ", "") + f"\nreturn {{ {', '.join(names)} }};"
    texts = await visit.page.evaluate(
        "([module, calls]) => { const all = new Function(module)();"
        " return calls.map((call) => new Function(...Object.keys(all), `return ${call}`)(...Object.values(all))); }",
        [module, [*SHOWN, *(f"percent({share!r})" for share in SHARES)]],
    )
    assert dict(zip(SHOWN, texts, strict=False)) == SHOWN
    assert texts[len(SHOWN) :] == [percent(share) for share in SHARES]
