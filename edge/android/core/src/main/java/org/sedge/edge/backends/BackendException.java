package org.sedge.edge.backends;

/** The runtime could not load or execute a program. The message says what is wrong, where, and what was expected. */
public class BackendException extends Exception {
    private static final long serialVersionUID = 1L;

    public BackendException(String message) {
        super(message);
    }

    public BackendException(String message, Throwable cause) {
        super(message, cause);
    }
}
