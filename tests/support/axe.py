"""axe-core, which finds what keeps people from using a page: contrast, names, landmarks, focus.

The package is fetched once from npm into `.clients/`, by the Node of this environment (https://github.com/dequelabs/axe-core).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.clients.installed import Package

if TYPE_CHECKING:
    from playwright.async_api import Page

AXE = Package("axe-core", "4.14.1")


def read_axe() -> str:
    """Returns the program to run in a page. Raises `Unavailable` where it cannot be fetched."""
    return (AXE.install() / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def find_violations(page: "Page", program: str, rules: Sequence[str] = ()) -> list[str]:
    """Returns one line for each finding: the rule, what it says, and the elements. No `rules` means all of them."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(program)
    found: list[dict[str, object]] = await page.evaluate(
        """async (rules) => {
            const options = { resultTypes: ["violations"], ...(rules.length ? { runOnly: rules } : {}) };
            return (await axe.run(document, options)).violations.flatMap((found) => found.nodes.map((node) => ({
                rule: found.id, help: found.help, where: node.html, why: node.failureSummary })));
        }""",
        [*rules],
    )
    return [f"{item['rule']}: {item['help']}: {str(item['where'])[:200]} ({item['why']})" for item in found]
