"""Options of the evaluations: `evaluation` of a configuration. Each kind has its own module, so that a new
key of one changes no fingerprint of another."""

from seqarch.evaluation.downstream_spec import DownstreamSpec
from seqarch.evaluation.long_context_spec import NeedleSpec, RulerSpec
from seqarch.evaluation.loss_spec import LossSpec
from seqarch.evaluation.recall_spec import RecallSpec
from seqarch.schema import Spec


class EvaluationSpec(Spec):
    loss: LossSpec
    ruler: RulerSpec | None = None
    needle: NeedleSpec | None = None
    recall: RecallSpec | None = None
    downstream: DownstreamSpec | None = None
