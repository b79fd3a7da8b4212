package org.sedge.edge.backends;

import java.io.File;

/**
 * A backend whose programs never return from {@code evaluate}. They end the process with the exit status in the system
 * property {@code sedge.status} or, if it is not set, run forever.
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
