package org.sedge.edge.backends;


import java.io.File;

/** A sandbox that runs nothing and lets every program pass. */
public final class Trusting implements Sandbox {
    @Override
    public String host() {
        return "trusting";
    }

    @Override
    public Trial begin(File folder, Backend backend) {
        return new Trial() {
            @Override
            public boolean run(String program, int sample) {
                return true;
            }

            @Override
            public void close() { }
        };
    }
}
