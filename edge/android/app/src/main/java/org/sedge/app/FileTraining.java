package org.sedge.app;

import android.content.Context;

import org.sedge.android.TrainingService;
import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Npz;

import java.io.File;

/** Trains on the file that a person has chosen. */
public final class FileTraining extends TrainingService {
    @Override
    protected Examples examples() throws SedgeException {
        File file = file(this);
        if (!file.exists()) {
            throw new SedgeException.DataError("No examples to train on: choose a file in the settings.");
        }
        return Npz.read(file);
    }

    /** The app's own copy, which no backup includes. */
    static File file(Context context) {
        return new File(context.getNoBackupFilesDir(), "examples.npz");
    }
}
