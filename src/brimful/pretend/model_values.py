"""What is told of a program's models: what it does already, and whose the bytes are."""

import msgspec


class Already(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program does already, so that nobody advises it.

    Attributes:
        checkpointed_bytes: Saved activations at the peak that checkpoints would not spare: of
            modules that backward passes run again, and where there are any, of none.
        is_of_one: Whether the batches of its forward passes are mostly of one.
        in_vain: Class of a model that has checkpointing turned on and of which no backward pass
            computed anything anew; empty: there is none.
        is_eval: Whether the parts of that model that it was turned on in are in eval mode.
    """

    checkpointed_bytes: int = 0
    is_of_one: bool = False
    in_vain: str = ""
    is_eval: bool = False


class NotUpdated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program holds of a model that none of its optimizers has.

    Attributes:
        model: Class of the module; empty: tensors of the sizes of what is trained, as an average of
            it, which no module that was called has.
        num_bytes: Of it at the peak.
        line: Where the largest of it was made, ``file:number``; empty: not known.
    """

    model: str
    num_bytes: int
    line: str


class ModelBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one of several models has at the peak.

    Attributes:
        name: Of the script's variable that it is in; its class where it is in none.
        model: Its class.
        num_bytes: Of its parameters, their gradients and optimizer state, and of what its forward
            passes left; what the script computes of their results is nobody's.
        items: Class of bytes and how many, the largest first.
    """

    name: str
    model: str
    num_bytes: int
    items: tuple[tuple[str, int], ...]
