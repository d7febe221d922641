"""The doctor: files become runs, every check is asked, and what is found is told file by file."""

from hf_efficient.doctor.report import Report as Report
from hf_efficient.doctor.report import examine_files as examine_files
