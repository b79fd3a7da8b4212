package org.sedge.app;

import android.content.Context;

import org.sedge.android.TrainingService;
import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Npz;

import java.io.File;

/** Trains on the examples file that the user has chosen. */
public final class FileTraining extends TrainingService {
    @Override
    protected Examples examples() throws SedgeException {
        File file = file(this);
        if (!file.exists()) {
            throw new SedgeException.DataError("No examples to train on: choose a file in the settings.");
        }
        return Npz.read(file);
    }

    /** Returns the app's private copy of the examples file, which is excluded from backups. */
    static File file(Context context) {
        return new File(context.getNoBackupFilesDir(), "examples.npz");
    }
}
