"""One encoder per task: from a record to samples of tokens."""

from brimful.errors import UnsupportedError
from brimful.train.data.encoders.base import Encoder
from brimful.train.data.encoders.chat import chat_encoder
from brimful.train.data.encoders.labelled import labelled_encoder
from brimful.train.data.encoders.pairs import pair_encoder
from brimful.train.data.encoders.preference import preference_encoder
from brimful.train.data.encoders.text import text_encoder
from brimful.train.data.source import DataSource
from brimful.values.job import Job


def encoder_for(job: Job, source: DataSource) -> Encoder:
    """Return the encoder of a job's task."""
    if job.task == "chat":
        return chat_encoder(source.messages_field)
    if job.task == "dpo":
        return preference_encoder()
    if job.task == "sequence-classification":
        return labelled_encoder(source.text_field, source.label_field, job.model.hf_config)
    if job.task == "seq2seq":
        return pair_encoder(source.source_field, source.target_field)
    if job.task == "module":
        raise UnsupportedError("task=module makes its own batches; it reads no --data")
    return text_encoder(source.text_field)
