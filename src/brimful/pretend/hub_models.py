"""Models of the hub that are not on this machine: what ``from_pretrained`` finds of them here.

How much memory a program takes hangs on the shapes of weights, and on none of their values. So they
are never fetched: a configuration is the one that ``brimful models`` knows, weights that are not on
this machine are tensors of their shapes, and a tokenizer takes words for tokens, with as many as
the model has rows. What is on this machine is read as ever, and what is not known here is asked of
the hub, but for its weights.

Source: ``utils/hub.py`` and ``modeling_utils.py`` of transformers 5.23.0.
"""

import contextlib
import functools
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch

from brimful.models import names
from brimful.models.hub_configs import HubConfig, find_hub_config, hub_configs
from brimful.models.registry import registry
from brimful.pretend.hub_composites import composite_of, is_composite, processor_of
from brimful.pretend.hub_processors import without_torchvision, write_processor
from brimful.pretend.hub_tokenizers import reads, unit_of, write_tokenizer
from brimful.pretend.when_imported import Changes

_API, _UTILS = "huggingface_hub.hf_api", "transformers.utils.hub"
_HTTP, _TRYING = "huggingface_hub.utils._http", "_http_backoff_base"
_LOADING = "transformers.modeling_utils"
_WORDS = "transformers.tokenization_utils_tokenizers"
_ASKING = (
    _API, _HTTP, _UTILS, "transformers.utils", _LOADING, "transformers.configuration_utils",
    "transformers.tokenization_utils_base", "transformers.processing_utils", _WORDS,
    "transformers.feature_extraction_utils", "transformers.image_processing_base",
    "transformers.video_processing_utils", "transformers.models.auto.feature_extraction_auto",
    "transformers.models.auto.image_processing_auto",
    "transformers.models.auto.video_processing_auto",
    "transformers.generation.configuration_utils", "transformers.models.auto.auto_factory",
    "transformers.models.auto.configuration_auto", "transformers.models.auto.tokenization_auto",
    "transformers.models.auto.processing_auto", "transformers.integrations.peft",
    "peft.utils.other",
)  # fmt: skip
"""Modules that ask the hub by functions that they have imported by name."""
_NAMED = ("_name_or_path", "name_or_path")
"""Where its own classes keep by which name a thing was asked for."""
_QUICK_S = 3.0
"""How long a hub may take to answer at all, before it has once."""
_RESOLVE = "_get_resolved_checkpoint_files"
_UNKNOWN = (
    "{} is neither on this machine nor among brimful models; put its config.json in a folder and "
    "name that instead: no weights are needed"
)
_PARTLY = (
    "of {}, which reads more than texts, only the text part's configuration is shipped here; put "
    "its config.json in a folder and name that instead: no weights are needed"
)
_ABSENT = "{} is not on this machine: its configuration is "
_CONFIG, _WEIGHTS = "config.json", "absent.safetensors"
_GENERATION = "generation_config.json"
_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf")
"""Weights, as they lie in a folder."""
_CACHED = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # fmt: skip
"""Of which one is in a hub's repository."""
_IN_FP32 = frozenset({
    "albert", "bart", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra",
    "gpt2", "gpt_neo", "longformer", "mobilebert", "modernbert", "mpnet", "mt5", "roberta", "t5",
    "vit", "xlm-roberta",
})  # fmt: skip
"""Architectures whose checkpoints are in fp32, recalled and not looked up; what came after them is
uploaded in bfloat16. The report says which type was taken."""
_TASKS = ("IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM")
"""Of a class that can do several the first is what it was made for."""


class _Weight(NamedTuple):
    """A tensor of a checkpoint, as safetensors' slices are: it is made when it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __getitem__(self, _: Any) -> Any:
        return torch.empty(self.shape, dtype=self.dtype)

    def get_shape(self) -> list[int]:
        """Return its shape."""
        return [*self.shape]


class _Absent:
    """What was asked for and is not on this machine."""

    def __init__(self, folder: Path, assumptions: set[str], dtype: str) -> None:
        self._folder, self._assumptions, self._dtype = folder, assumptions, dtype
        self._folders: dict[str, Path | None] = {}
        self.partly = set[str]()
        """Names of which the text part alone is known here."""
        self.is_over = False
        """Whether the run is: modules that were imported in it keep what was changed in others."""

    def folder_of(self, asked: Any) -> Path | None:
        """Return a folder that stands for a model; None: it is here, or nobody knows it."""
        name = str(asked)
        if self.is_over:
            return None
        if name not in self._folders:
            self._folders[name] = self._made(name)
        return self._folders[name]

    def is_own(self, file: str) -> bool:
        """Whether a file was made here."""
        return self._folder in Path(file).parents

    def _made(self, name: str) -> Path | None:
        if name and Path(name).is_dir():
            return self._completed(Path(name))
        if not name or Path(name).exists() or _is_cached(name, (_CONFIG,)):
            return None
        taken = names.find(name)
        published = find_hub_config(name) or (hub_configs().get(taken.name) if taken else None)
        if published is not None:
            return self._published(name, published)
        if taken is None:
            return None
        entry, is_whole = registry()[taken.name], is_composite(taken.name)
        described = composite_of(taken.name) if is_whole else entry["config"]
        if described is None:
            self.partly.add(name)
            return None
        folder = self._folder / taken.name.replace("/", "--")
        folder.mkdir(exist_ok=True)
        kind = described["model_type"] if is_whole else entry["model_type"]
        told = {"model_type": kind, "architectures": _classes(kind), "dtype": _dtype_of(kind)}
        config = _with_start({**told, **described})
        whose = f"{taken.name}'s"
        whose += ", whole by its count" * is_whole
        self._write(folder, config, name, whose, processor_of(taken.name))
        return folder

    def _published(self, name: str, published: HubConfig) -> Path:
        """Make a folder of a model that is known by the configuration that it is published with."""
        folder = self._folder / name.replace("/", "--")
        folder.mkdir(exist_ok=True)
        kind, classes = published.model_type, [published.architecture]
        told = {"model_type": kind, "architectures": classes, "dtype": published.dtype}
        config = {**told, **published.config}
        self._write(folder, config, name, "the published one", published.processor)
        return folder

    def _write(
        self,
        folder: Path,
        config: dict[str, Any],
        name: str,
        whose: str,
        processor: Mapping[str, Any],
    ) -> None:
        config["dtype"] = self._dtype or config["dtype"]
        (folder / _CONFIG).write_text(json.dumps(config), "utf-8")
        tokens = self._write_rest(folder, config, name, processor)
        self._assumptions.add(
            f"{_ABSENT.format(name)}{whose}, weights are of {config['dtype']} where the program "
            f"does not say{', and ' * bool(tokens)}{tokens}"
        )

    def _completed(self, given: Path) -> Path | None:
        """Make a folder of a configuration that lies alone in one; None: there is more in it."""
        from transformers import CONFIG_MAPPING

        if not {_CONFIG} <= {each.name for each in given.iterdir()} <= {_CONFIG, _GENERATION}:
            return None
        config = json.loads((given / _CONFIG).read_text("utf-8"))
        if config.get("model_type") not in CONFIG_MAPPING:
            return None
        folder = self._folder / f"{len(self._folders)}-{given.name}"
        shutil.copytree(given, folder)
        if tokens := self._write_rest(folder, config, str(given), {}):
            self._assumptions.add(f"{given} holds a configuration alone: {tokens}")
        return folder

    def _write_rest(
        self, folder: Path, config: Mapping[str, Any], name: str, processor: Mapping[str, Any]
    ) -> str:
        """Write what makes texts, images and sounds ready; return what is taken for tokens."""
        built = _built(config)
        if write_processor(folder, built, processor):
            others = f", its published {' and '.join(processor)} and else" if processor else " and"
            may = "" if processor else ": published ones may make other numbers of tokens"
            self._assumptions.add(
                f"the processor of {name} has what its configuration decides{others} its class's "
                f"own settings{may}"
            )
        if not reads(built):
            return ""
        write_tokenizer(folder, built, config.get("architectures") or ())
        return f"{unit_of(built)} are taken for tokens"

    def weights_of(self, asked: Any) -> str:
        """Return a file that stands for a model's weights; empty: they are on this machine."""
        if self.is_over:
            return ""
        folder = Path(self.folder_of(asked) or str(asked))
        if folder.is_dir():
            is_here = any(True for kind in _FILES for _ in folder.glob(kind))
        else:
            is_here = _is_cached(str(asked), _CACHED)
        if is_here:
            return ""
        path = self._folder / _WEIGHTS
        if not path.exists():
            _write_weights(path)
        self._assumptions.add(f"weights of {asked} are not on this machine: none are read")
        return str(path)


def stood_in_for(thing: Any, assumptions: Iterable[str]) -> str:
    """Name the model of the hub that a stand-in is of; empty: it is of none.

    ``thing``: a configuration, a tokenizer, a model, or what has one. ``assumptions``: of the run.
    """
    had = vars(thing) if hasattr(thing, "__dict__") else {}
    every = (thing, *(had.get(each) for each in ("config", "tokenizer")))
    names = {vars(each).get(key) for each in every if hasattr(each, "__dict__") for key in _NAMED}
    begins = {_ABSENT.format(name): str(name) for name in names if name}
    return next((n for line in assumptions for b, n in begins.items() if line.startswith(b)), "")


def _is_cached(name: str, files: Iterable[str]) -> bool:
    """Whether one of a repository's files was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)
    except ValueError:  # no name of a repository
        return False


def _dtype_of(model_type: str) -> str:
    return "float32" if model_type in _IN_FP32 else "bfloat16"


def _classes(model_type: str) -> list[str]:
    """Name the class that a model was uploaded as: that of what it was made for."""
    from transformers.models.auto import modeling_auto

    tables = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in _TASKS)
    found = (table[model_type] for table in tables if model_type in table)
    return [name if isinstance(name, str) else name[0] for name in found][:1]


def _built(config: Mapping[str, Any]) -> Any:
    """Return a configuration of the library's, with its defaults."""
    from transformers import AutoConfig

    given = {key: value for key, value in config.items() if key != "model_type"}
    return AutoConfig.for_model(config["model_type"], **given)


def _with_start(config: dict[str, Any]) -> dict[str, Any]:
    """Say where a decoder starts that reads an encoder: at padding, as T5's, if nothing is said."""
    built, key = _built(config), "decoder_start_token_id"
    if not getattr(built, "is_encoder_decoder", False) or getattr(built, key, None) is not None:
        return config
    return {**config, key: getattr(built, "pad_token_id", None) or 0}


def _write_weights(path: Path) -> None:
    """Write a file of one number in bfloat16, which is asked for its type alone."""
    header = json.dumps({"absent": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0\0")


def _asking(absent: _Absent, module: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what a module has of the functions that ask the hub, told where to look."""
    found = vars(module)
    if "cached_files" in found:
        yield module, "cached_files", _from_folder(absent, found["cached_files"])
    if "resolve_revision" in found:
        yield module, "resolve_revision", _without_asking(absent, found["resolve_revision"])
    if "file_exists" in found:
        yield module, "file_exists", _in_folder(absent, found["file_exists"])
    if module.__name__ == _HTTP and _TRYING in found:  # since huggingface_hub 1
        yield module, _TRYING, _trying_once(found[_TRYING])
    if module.__name__ == _API:
        for name in ("list_repo_files", "list_repo_tree"):
            original = getattr(module.HfApi, name)
            yield module.HfApi, name, _without_listing(absent, original)
    if module.__name__ == _WORDS:
        kind, name = module.TokenizersBackend, "convert_to_native_format"
        yield kind, name, classmethod(_whole(absent, vars(kind)[name].__func__))
    if module.__name__.startswith("transformers."):
        yield from without_torchvision(lambda name: absent.folder_of(name) is not None, module)
    if module.__name__ == _LOADING and "LoadStateDictConfig" in found:  # since transformers 5
        yield module, _RESOLVE, _without_weights(absent, found[_RESOLVE])
        load = _loading_shapes(module.PreTrainedModel._load_pretrained_model)  # noqa: SLF001
        yield module.PreTrainedModel, "_load_pretrained_model", staticmethod(load)


def _trying_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Ask a hub that cannot be reached once, and not with each file, each five times more.

    Source: ``utils/_http.py`` of huggingface_hub 1.32.
    """
    asked: dict[str, BaseException | None] = {}

    @functools.wraps(original)
    def tried(method: Any, url: str, **kwargs: Any) -> Iterator[Any]:
        host = urlsplit(url).netloc
        if (before := asked.get(host)) is not None:
            raise before
        if host in asked:
            yield from original(method, url, **kwargs)
            return
        quick = min(float(kwargs.get("timeout") or _QUICK_S), _QUICK_S)
        try:
            for answer in original(method, url, **{**kwargs, "timeout": quick, "max_retries": 0}):
                asked[host] = None
                yield answer
        except Exception as error:
            if host not in asked:
                asked[host] = error
            raise

    return tried


def _from_folder(absent: _Absent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cached_files(path_or_repo_id: Any, filenames: Any, *args: Any, **kwargs: Any) -> Any:
        folder = absent.folder_of(path_or_repo_id)
        try:
            return original(str(folder or path_or_repo_id), filenames, *args, **kwargs)
        except OSError as error:
            name = str(path_or_repo_id)
            if folder is None and not Path(name).exists():
                error.add_note((_PARTLY if name in absent.partly else _UNKNOWN).format(name))
            raise

    return cached_files


def _whole(absent: _Absent, original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a class of tokenizers take the words whole, not as pieces that its own kind would join.

    Source: ``TokenizersBackend.convert_to_native_format`` of transformers 5.23.0.
    """

    @functools.wraps(original)
    def convert(cls: Any, trust_remote_code: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - transformers'
        file = kwargs.get("tokenizer_file")
        if file and absent.is_own(file):
            return kwargs
        return original(cls, trust_remote_code=trust_remote_code, **kwargs)

    return convert


def _without_asking(absent: _Absent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resolve_revision(name: Any, revision: Any = None, **kwargs: Any) -> Any:
        if name is not None and absent.folder_of(name) is not None:
            return revision
        return original(name, revision, **kwargs)

    return resolve_revision


def _in_folder(absent: _Absent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def file_exists(repo_id: str, filename: str, **kwargs: Any) -> Any:
        folder = absent.folder_of(repo_id)
        if folder is None:
            return original(repo_id, filename, **kwargs)
        return (folder / filename).exists()

    return file_exists


def _without_listing(absent: _Absent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def listed(self: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        if absent.folder_of(repo_id) is not None:
            return []
        return original(self, repo_id, *args, **kwargs)

    return listed


def _without_weights(absent: _Absent, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resolved(*, pretrained_model_name_or_path: Any, gguf_file: Any = None, **given: Any) -> Any:
        name = pretrained_model_name_or_path
        if name is not None and gguf_file is None and (path := absent.weights_of(name)):
            return [path], None
        return original(pretrained_model_name_or_path=name, gguf_file=gguf_file, **given)

    return resolved


def _loading_shapes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(model: Any, state_dict: Any, files: Any, how: Any, *args: Any, **kwargs: Any) -> Any:
        if files and Path(files[0]).name == _WEIGHTS:
            tied = getattr(model, "all_tied_weights_keys", {})
            state = {name: x for name, x in model.state_dict().items() if name not in tied}
            state_dict = {name: _Weight(tuple(x.shape), x.dtype) for name, x in state.items()}
            files = None
        return original(model, state_dict, files, how, *args, **kwargs)

    return load


@contextlib.contextmanager
def absent_models(assumptions: set[str], dtype: str) -> Iterator[dict[str, Changes]]:
    """Yield what is changed in transformers so that models need not be on this machine.

    ``assumptions``: where it is noted what a run rests on. ``dtype``: of their weights where a
    program does not say; empty: as they are published.
    """
    with tempfile.TemporaryDirectory(prefix="brimful-hub-") as folder:
        absent = _Absent(Path(folder), assumptions, dtype)
        try:
            yield dict.fromkeys(_ASKING, functools.partial(_asking, absent))
        finally:
            absent.is_over = True
