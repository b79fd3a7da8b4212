package com.example.walks;

import android.content.Context;
import android.database.Cursor;
import android.database.sqlite.SQLiteDatabase;

import org.sedge.android.Conditions;
import org.sedge.android.Membership;
import org.sedge.android.TrainingService;
import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;

import java.io.IOException;

/**
 * How a walking app takes part in a fleet. It provides the training examples and lets the user
 * join; the library does everything else.
 */
public final class WalkTraining extends TrainingService {
    private static final int FEATURES = 13;

    @Override
    protected Examples examples() throws SedgeException {
        try (SQLiteDatabase walks = openOrCreateDatabase("walks", MODE_PRIVATE, null);
                Cursor row = walks.rawQuery("SELECT kind, * FROM windows", null)) {
            float[] inputs = new float[row.getCount() * FEATURES];
            long[] labels = new long[row.getCount()];
            for (int i = 0; row.moveToNext(); i++) {
                labels[i] = row.getLong(0);
                for (int f = 0; f < FEATURES; f++) {
                    inputs[i * FEATURES + f] = row.getFloat(1 + f);
                }
            }
            return new Examples(new Rows(inputs, FEATURES), new Rows(labels));
        }
    }

    /**
     * Joins a fleet. Call it from a settings screen; the message of either exception says what went
     * wrong.
     */
    static void join(Context context, String joinText) throws SedgeException, IOException {
        Membership.join(context, joinText);
        new Conditions().schedule(context, WalkTraining.class);
    }
}
