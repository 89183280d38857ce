"""Every format that a message can have: which codec writes which form."""

from taugrad.compressors.method.base import Form
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.positions import OURS

WITHOUT_TAU: tuple[Form, ...] = ("f32", "fp16", "bf16", "fp8", "linear", "quantile")
FORMS_OF: dict[str, tuple[Form, ...]] = {
    "packed32": tuple(FORMS),
    "golomb_rice": tuple(FORMS),
    "bitmap": tuple(FORMS),
    "raw": ("bgt", "qgt", "strom", "f32"),
    "chunked": WITHOUT_TAU,
    "every": WITHOUT_TAU,
}
"""What each codec can write: raw where a zero says "not sent", chunked where no sign stands apart; `every`
stands for parameters that are sent whole."""

CODECS = (*(codec.name for codec in OURS), "every")
FORMATS = [(codec, form) for codec in CODECS for form in FORMS_OF[codec]]
"""What the compressors' tests share."""
