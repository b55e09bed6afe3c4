"""TODO"""
def excuse(damaged):
    return None
