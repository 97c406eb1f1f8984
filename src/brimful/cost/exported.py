"""In which format a folder holds its weights, by its configuration."""

from typing import Any

from brimful.cost.formats import SERVED, WeightsFormat
from brimful.errors import UnsupportedError
from brimful.models.spec import ModelSpec
from brimful.techniques.quantization import GROUP_SIZE

_FIELD = "quantization_config"
_KIND = "Int8DynamicActivationIntxWeightConfig"


def exported_format(spec: ModelSpec) -> WeightsFormat | None:
    """Return the format that a folder's configuration says; None: plain, or as it is published."""
    given = spec.hf_config.get(_FIELD)
    if given is None or given.get("quant_method") in SERVED:
        return None
    config = (given.get("quant_type") or {}).get("default") or {}
    data = config.get("_data") or {}
    bits = (data.get("weight_dtype") or {}).get("_data")
    group = ((data.get("weight_granularity") or {}).get("_data") or {}).get("group_size")
    known: dict[Any, WeightsFormat] = {
        ("int8", None): "int8-dynamic",
        ("int4", GROUP_SIZE): "int4-dynamic",
    }
    if config.get("_type") != _KIND or (bits, group) not in known:
        what = f"{config.get('_type') or given.get('quant_method')} of {bits}, group_size={group}"
        raise UnsupportedError(
            f"{spec.name} is quantised by {what}, which this version does not run; it runs int8 in "
            f"rows and int4 in groups of {GROUP_SIZE}, as brimful convert writes them"
        )
    return known[bits, group]
