package org.sedge.app;

import android.app.Activity;
import android.content.Intent;
import android.net.Uri;
import android.os.AsyncTask;
import android.os.Bundle;
import android.view.View;
import android.widget.EditText;
import android.widget.TextView;

import org.sedge.android.Conditions;
import org.sedge.android.Membership;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Npz;

import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;

/** Lets the user join a fleet and choose the training examples. */
public final class SettingsActivity extends Activity {
    private static final int CHOSEN = 1;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        setContentView(R.layout.settings);
        findViewById(R.id.join).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                join();
            }
        });
        findViewById(R.id.choose).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                Intent intent = new Intent(Intent.ACTION_OPEN_DOCUMENT);
                startActivityForResult(intent.addCategory(Intent.CATEGORY_OPENABLE).setType("*/*"), CHOSEN);
            }
        });
        showMembership();
        showExamples(null);
        take(getIntent());
    }

    /** Fills in a scanned join code, but does not join. Any web page can open such a link, so the user must confirm. */
    private void take(Intent intent) {
        String text = intent.getDataString();
        if (text != null) {
            intent.setData(null); // do not fill it in again when the screen rotates
            ((EditText) findViewById(R.id.join_text)).setText(text);
            try {
                AgentConfig config = AgentConfig.fromJoinText(text);
                say(R.id.joined, getString(R.string.scanned, config.fleet, config.url, config.device));
            } catch (SedgeException error) {
                say(R.id.joined, error.getMessage());
            }
        }
    }

    private void join() {
        EditText field = (EditText) findViewById(R.id.join_text);
        try {
            Membership.join(this, field.getText().toString());
            new Conditions().schedule(this, FileTraining.class);
            field.setText("");
            showMembership();
        } catch (SedgeException | IOException | IllegalStateException error) {
            say(R.id.joined, error.getMessage());
        }
    }

    private void showMembership() {
        try {
            AgentConfig config = Membership.config(this);
            say(R.id.joined, config == null
                    ? getString(R.string.not_joined)
                    : getString(R.string.joined, config.device, config.fleet, config.url));
        } catch (SedgeException | IOException error) {
            say(R.id.joined, error.getMessage());
        }
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        if (request == CHOSEN && result == RESULT_OK) {
            showExamples(data.getData());
        }
    }

    /**
     * Shows a summary of the examples file. A newly chosen file is first copied; it replaces the old one only if it is
     * valid.
     */
    private void showExamples(final Uri chosen) {
        new AsyncTask<Void, Void, String>() {
            @Override
            protected String doInBackground(Void... nothing) {
                try {
                    return chosen == null ? present() : copied(chosen);
                } catch (SedgeException error) {
                    return error.getMessage();
                } catch (IOException | SecurityException error) {
                    return getString(R.string.unreadable, error);
                } catch (OutOfMemoryError error) {
                    return getString(R.string.too_large);
                }
            }

            @Override
            protected void onPostExecute(String text) {
                say(R.id.examples, text);
            }
        }.execute();
    }

    private String present() throws SedgeException {
        File file = FileTraining.file(this);
        return file.exists() ? described(Npz.read(file)) : getString(R.string.no_examples);
    }

    private String copied(Uri chosen) throws IOException, SedgeException {
        File file = FileTraining.file(this);
        File fresh = new File(file.getPath() + ".new");
        try (InputStream in = getContentResolver().openInputStream(chosen)) {
            if (in == null) {
                throw new FileNotFoundException(chosen.toString());
            }
            Files.copy(in, fresh.toPath(), StandardCopyOption.REPLACE_EXISTING);
            String text = described(Npz.read(fresh));
            Files.move(fresh.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE);
            return text;
        } finally {
            fresh.delete();
        }
    }

    private String described(Examples examples) {
        return getString(R.string.examples, examples.count(), Rows.tuple(examples.inputs.shape()));
    }

    private void say(int view, String text) {
        ((TextView) findViewById(view)).setText(text);
    }
}
