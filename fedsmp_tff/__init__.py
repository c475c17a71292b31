"""Fed-SMP on TensorFlow Federated: private sums of k shared coordinates.

Algorithm 1 of Hu, Guo, Gong, "Federated Learning with Sparsified Model
Perturbation" (d weights, k kept coordinates, r clients a round):

  1. the server chooses ONE set of k coordinates for the round, at random (RandK)
     or the top k of an update on public data (TopK);
  2. it broadcasts the weights and the coordinates to r clients;
  3. each client trains tau steps and takes old minus new weights;
  4. keeps the k coordinates, times d/k under RandK;
  5. clips them to L2 norm C;
  6. adds N(0, C^2 sigma^2 / r) to each of them;
  7. encodes them as integers, and one secure sum adds those of all clients;
  8. the server decodes, divides by r, and subtracts the mean from the weights;
  9. epsilon follows from sigma, the sampling of clients and the number of rounds;
  10. k does not enter it: fewer coordinates, less noise, the same guarantee.

Beyond it: what the server makes of past releases, public data and the schedule costs no
epsilon (`PostProcessing`): masks without public data (`ReleasedTopK`) or by both
(`HybridTopK`), factors before the clip (`Preconditioner`), guesses (`Prediction`), filtered
updates (`Filter`), averages of the weights (`averaging`).

Start at `build_fed_smp` for a whole learning process, at `FedSmpFactory` to compose
the aggregator into a process of your own.
"""

from fedsmp_tff import _platform

if _platform.problem():
  raise ImportError(_platform.problem())

# pylint: disable=g-import-not-at-top
from fedsmp_tff.privacy.spec import PrivacySpec as PrivacySpec
from fedsmp_tff.aggregator import FedSmpFactory as FedSmpFactory
from fedsmp_tff.mechanism.adaptive_clipping import AdaptiveClipping as AdaptiveClipping
from fedsmp_tff.client_training import LocalTraining as LocalTraining
from fedsmp_tff.client_training import examples_of as examples_of
from fedsmp_tff.post_processing.base import Factors as Factors
from fedsmp_tff.post_processing.base import Filter as Filter
from fedsmp_tff.post_processing.base import Guess as Guess
from fedsmp_tff.post_processing.filters import LowPass as LowPass
from fedsmp_tff.post_processing.filters import Momentum as Momentum
from fedsmp_tff.post_processing.filters import Shrinkage as Shrinkage
from fedsmp_tff.baselines import build_dp_fedavg as build_dp_fedavg
from fedsmp_tff.learning_process import build_fed_smp as build_fed_smp
from fedsmp_tff.baselines import build_fedavg as build_fedavg
from fedsmp_tff.baselines import build_fedavg_randk as build_fedavg_randk
from fedsmp_tff.baselines import build_fedavg_topk as build_fedavg_topk
from fedsmp_tff.learning_process import tag_client as tag_client
from fedsmp_tff.mechanism.channel import Channel as Channel
from fedsmp_tff.mechanism.mechanism import Mechanism as Mechanism
from fedsmp_tff.mechanism.state import FedSmpState as FedSmpState
from fedsmp_tff.post_processing.base import PostProcessing as PostProcessing
from fedsmp_tff.mechanism.state import Release as Release
from fedsmp_tff.post_processing.preconditioning import Preconditioner as Preconditioner
from fedsmp_tff.post_processing.prediction import Prediction as Prediction
from fedsmp_tff.post_processing.released_topk import HybridTopK as HybridTopK
from fedsmp_tff.post_processing.released_topk import ReleasedTopK as ReleasedTopK
from fedsmp_tff.sparsifiers import Dense as Dense
from fedsmp_tff.sparsifiers import Kept as Kept
from fedsmp_tff.sparsifiers import Known as Known
from fedsmp_tff.sparsifiers import PublicTraining as PublicTraining
from fedsmp_tff.sparsifiers import RandK as RandK
from fedsmp_tff.sparsifiers import Sparsifier as Sparsifier
from fedsmp_tff.sparsifiers import TopK as TopK
