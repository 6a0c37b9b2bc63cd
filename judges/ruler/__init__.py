"""The judge `ruler`: a language model compares the candidates for one scenario (RULER, after ART's reward of that
name).

The question is based on https://art.openpipe.ai/fundamentals/ruler. Asking it and processing the answer are our own:
ids bound to candidates, a varying order, answers checked and repaired, equal candidates judged once.
"""

from judges.ruler.judge import RulerJudge
from judges.ruler.settings import build

__all__ = ["RulerJudge", "build"]
