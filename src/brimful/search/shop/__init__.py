"""Which GPU, how many, under which plan: what a run costs against how long it takes."""
