"""Every published number and every claim beside what was measured: `make report`."""

from companion.scorecard.collected import collected
from companion.scorecard.files import main, write
from companion.scorecard.joined import numbers
from companion.scorecard.judge import VERDICTS, judged

__all__ = ["VERDICTS", "collected", "judged", "main", "numbers", "write"]
