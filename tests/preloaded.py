"""What a rank would import and ask anew, in the process that ranks are forked from: the loop, scikit-learn, pandas, the CPU's name."""

import pandas  # noqa: F401
from codecarbon.core.util import detect_cpu_model

from vitssl import train  # noqa: F401
from vitssl.evaluators import classification  # noqa: F401

detect_cpu_model()  # it sleeps for a second
