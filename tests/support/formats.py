"""Every format that a message can have: which codec writes which form."""

from taugrad.compressors.wire.codecs import OURS
from taugrad.compressors.wire.forms import FORMS, Form

WITHOUT_TAU: tuple[Form, ...] = ("f32", "fp16", "bf16", "fp8", "linear", "quantile")
FORMS_OF: dict[str, tuple[Form, ...]] = {
    "packed32": tuple(FORMS),
    "golomb_rice": tuple(FORMS),
    "bitmap": tuple(FORMS),
    "raw": ("wgt", "bgt", "qgt", "strom"),
    "chunked": ("wgt", *WITHOUT_TAU),
    "every": WITHOUT_TAU,
}
"""What each codec can write: raw where a zero says "not sent", chunked where no sign stands apart."""

FORMATS = [(codec, form) for codec in OURS for form in FORMS_OF[codec.name]]
