"""Check what each training trick promises, on tiny models and made rows or on the user's own."""
