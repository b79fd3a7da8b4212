package org.sedge.android;

import android.content.Context;

import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.Sandbox;

import java.io.File;
import java.io.IOException;

/** The library's sandbox with the replacements for Android's classes. A process must start within two seconds. */
public final class PhoneSandbox implements Sandbox {
    private final Sandbox phone = new TrialProcess(new Context(), 2000);

    @Override
    public String host() {
        return phone.host();
    }

    @Override
    public Trial begin(File folder, Backend backend) throws IOException {
        return phone.begin(folder, backend);
    }
}
