"""Let `dvc plots show` work without a network: write its page with Vega inside, and configure it for this clone only.

`make` runs it after the installation, in the root of the repository. DVC's own page loads Vega from the network.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import vl_convert

TEMPLATE = Path(__file__).with_name("plots_page.html")
PAGE = Path("tmp/plots.html")  # in .dvc; its folder tmp is ignored by git
VEGA_LITE = "5.21"  # the newest of the major version that DVC's specifications are written in


def main() -> None:
    """Write the page and set `plots.html_template` in .dvc/config.local.

    Raises:
        ValueError: Vega contains text that would end its script, or that DVC would replace.
    """
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
    if found := re.search(r"</script|<!--|\{(?:scripts|plot_divs|refresh_tag)\}", vega, re.IGNORECASE):
        raise ValueError(f"Vega-Lite {VEGA_LITE}: expected no {found[0]!r} in its bundle")
    page = Path(".dvc") / PAGE
    page.parent.mkdir(exist_ok=True)
    page.write_text(TEMPLATE.read_text(encoding="utf-8").replace("<VEGA>", vega), encoding="utf-8")
    command = ["dvc", "config", "--local", "plots.html_template", str(PAGE)]
    subprocess.run(command, check=True)  # noqa: S603 - no argument comes from outside


if __name__ == "__main__":
    main()
