if __name__ != "lockstep.parity":
    raise ImportError("import this package as lockstep.parity, not parity")
