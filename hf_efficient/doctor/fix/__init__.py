"""`--fix`: what is safe is rewritten, and everything else in a file stays byte for byte."""

from hf_efficient.doctor.fix.mend import mend as mend
