package org.sedge.edge.backends;

import java.io.File;

/**
 * Programs whose {@code evaluate} never returns. It ends the process with the exit status in the system property
 * {@code sedge.status} or, without one, runs forever.
 */
public final class Unending implements Backend {
    @Override
    public String name() {
        return "executorch";
    }

    @Override
    public Program load(File file, String method) {
        return new Program() {
            @Override
            public Tensor[] run(Tensor... inputs) throws BackendException {
                Integer status = Integer.getInteger("sedge.status");
                if (method.equals("evaluate") && status != null) {
                    Runtime.getRuntime().halt(status);
                }
                while (method.equals("evaluate")) {
                    Thread.yield();
                }
                throw new BackendException("not asked for");
            }

            @Override
            public void close() { }
        };
    }
}
