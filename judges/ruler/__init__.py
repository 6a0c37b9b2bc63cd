"""The judge `ruler`: a language model compares the candidates at one scenario (RULER, after ART's reward of that name).

What is asked rests on https://art.openpipe.ai/fundamentals/ruler; how it is asked, and what becomes of the answer, is
ours: ids bound to candidates, an order that changes, answers checked and repaired, equal candidates judged once.
"""

from learnloop_service.judges.ruler.judge import RulerJudge
from learnloop_service.judges.ruler.settings import build

__all__ = ["RulerJudge", "build"]
