"""Which metric counts, found without torch if the spec alone says so."""

from typing import TYPE_CHECKING

from ..spec.tasks import Classification, LanguageModel
from .metric import ACCURACY, LOSS, Metric

if TYPE_CHECKING:
    from ..spec import RunSpec


def counting_metric(spec: "RunSpec") -> Metric:
    """The metric that a run is judged by.

    For tasks other than classification and language models its data are read. Raises ValueError: the data
    or the task cannot be built.
    """
    match spec.task:
        case Classification():
            return ACCURACY
        case LanguageModel():
            return LOSS
        case _:
            from ..data import load  # noqa: PLC0415 - torch takes seconds
            from .building import build_task  # noqa: PLC0415

            return build_task(spec.task, load(spec.data).shape).metrics[0]
