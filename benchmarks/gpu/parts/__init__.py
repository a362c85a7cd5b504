"""The parts of the measurement, one module each: `measure(options, results)`."""
