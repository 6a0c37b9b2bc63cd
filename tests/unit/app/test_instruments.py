"""What is counted exists before anything happens: Prometheus cannot tell the first event from a new series."""

import re
import subprocess
import sys

from tests.unit.deploy.metric_names import rules

_START = (
    "import learnloop_service.app.instruments as i, prometheus_client as p; "
    "print(p.generate_latest(i.REGISTRY).decode())"
)


def test_what_alerts_count_is_0_from_the_start() -> None:
    """A new process is asked, because other tests of this one may have counted."""
    page = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True).stdout
    counted = {
        name for rule in rules() for name in re.findall(r'learnloop_(?!http)\w+_total(?:\{\w+="\w+"\})?', rule["expr"])
    }
    assert len(counted) >= 6
    for counter in counted:
        name, _, label = counter.partition("{")
        series = re.findall(rf"^{name}(?:\{{.*{re.escape(label.rstrip('}'))}.*\}})? (\S+)$", page, re.MULTILINE)
        assert series, counter
        assert set(series) == {"0.0"}, counter
