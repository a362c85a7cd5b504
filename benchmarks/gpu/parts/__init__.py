"""The parts of the measurement, a module each: `measure(options, results)`."""
