"""Which cases of a sample are run, for fixtures that run many at once."""


def chosen(request, parameter):
    """Return the values of a parameter in the tests of this file that this session runs."""
    here = (item for item in request.session.items if item.path == request.path)
    calls = (getattr(item, "callspec", None) for item in here)
    return {call.params[parameter] for call in calls if call and parameter in call.params}
