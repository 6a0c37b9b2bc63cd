"""What a template gives to a component agrees with the component's type."""

import pytest

from scripts.dashboard_elements import faults

BOX = """
/**
 * @typedef {object} BoxProps
 * @property {string} title
 * @property {(value: number) => void} [pick]
 */
/** A box. @param {BoxProps} props */
export function Box({ title, pick }) {}
/** @param {{size: number} & {word?: string}} props */
const Small = ({ size, word }) => html`<p>${size}</p>`;
export const shown = html`<${Small} size=${{ a: `}${1}` }} word="a > b" />`;
"""


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<${Box} key=${1} title=${x => `<${x}>`} pick=${act}>text<//>", []),
        ("<${Box} title=a pick=${act} ...${more} />", []),
        ("<${Box} pick=${act} />", ["page.js:2: <Box> needs the property `title`"]),
        ("<${Box} ...${more} />", []),
        (
            '<${Box} title="a" sync=${"b"} />',
            ["box.js: no template gives <Box> its property `pick`", "page.js:2: <Box> has no property `sync`"],
        ),
    ],
)
def test_a_fault_is_found_where_the_template_is(template: str, expected: list[str]) -> None:
    page = f'import {{ Box }} from "./box.js";\nhtml`{template}`;'
    assert sorted(faults({"box.js": BOX, "page.js": page})) == expected


def test_a_component_without_a_type_is_a_fault() -> None:
    page = "function Bare({ a }) {}\nhtml`<${Bare} a=${1} />`;"
    assert list(faults({"page.js": page})) == ["page.js:2: <Bare> has properties, and no type of them in its comment"]
