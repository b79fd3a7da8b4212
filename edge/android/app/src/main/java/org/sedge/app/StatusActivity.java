package org.sedge.app;

import android.app.Activity;
import android.content.Intent;
import android.os.AsyncTask;
import android.os.Build;
import android.os.Bundle;
import android.os.Handler;
import android.os.Looper;
import android.text.format.DateUtils;
import android.text.format.Formatter;
import android.view.View;
import android.widget.ArrayAdapter;
import android.widget.ListView;
import android.widget.TextView;
import android.widget.Toast;

import org.sedge.android.Conditions;
import org.sedge.android.Membership;
import org.sedge.android.Model;
import org.sedge.android.RoundLog;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.Classified;
import org.sedge.edge.ClientCertificate;
import org.sedge.edge.Examples;
import org.sedge.edge.PersonalModel;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.host.Npz;

import java.io.IOException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/** Shows what this phone is doing in its fleet, and the rounds that it took part in. */
public final class StatusActivity extends Activity {
    private static final int NOTIFICATIONS = 1;

    private final Handler handler = new Handler(Looper.getMainLooper());
    private final Runnable refresh = new Runnable() {
        @Override
        public void run() {
            refresh();
        }
    };
    private RoundLog.Subscription changes;
    private final List<String> shown = new ArrayList<String>();
    private ArrayAdapter<String> rounds;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        setContentView(R.layout.status);
        rounds = new ArrayAdapter<String>(this, android.R.layout.simple_list_item_1, shown);
        ListView list = (ListView) findViewById(R.id.rounds);
        list.setAdapter(rounds);
        list.setEmptyView(findViewById(R.id.none));
        findViewById(R.id.settings).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                startActivity(new Intent(StatusActivity.this, SettingsActivity.class));
            }
        });
        findViewById(R.id.predict).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                predict();
            }
        });
        if (Build.VERSION.SDK_INT >= 33) { // without this permission, Android hides the training notification
            requestPermissions(new String[] {"android.permission.POST_NOTIFICATIONS"}, NOTIFICATIONS);
        }
        findViewById(R.id.train).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                try {
                    Conditions.trainNow(StatusActivity.this, FileTraining.class);
                } catch (IllegalStateException error) {
                    Toast.makeText(StatusActivity.this, error.getMessage(), Toast.LENGTH_LONG).show();
                }
            }
        });
    }

    @Override
    protected void onResume() {
        super.onResume();
        changes = Membership.log(this).listen(new RoundLog.Listener() {
            @Override
            public void changed() {
                handler.removeCallbacks(refresh); // merge several changes into one refresh
                handler.post(refresh);
            }
        });
        refresh();
    }

    @Override
    protected void onPause() {
        changes.close();
        handler.removeCallbacks(refresh);
        super.onPause();
    }

    /** Runs this phone's model on the user's own examples and shows the predicted classes. */
    private void predict() {
        text(R.id.prediction, getString(R.string.predicting));
        new AsyncTask<Void, Void, String>() {
            @Override
            protected String doInBackground(Void... nothing) {
                try (PersonalModel model = Model.open(StatusActivity.this)) {
                    return predicted(model, Npz.read(FileTraining.file(StatusActivity.this)));
                } catch (SedgeException | IOException error) {
                    return error.getMessage();
                } catch (OutOfMemoryError error) {
                    return getString(R.string.too_large);
                }
            }

            @Override
            protected void onPostExecute(String found) {
                text(R.id.prediction, found);
            }
        }.execute();
    }

    private String predicted(PersonalModel model, Examples examples) throws SedgeException {
        Classified found = model.classify(examples.inputs);
        Rows classes = found.classes();
        Rows labels = examples.targets;
        int right = 0;
        for (int i = 0; labels != null && i < Math.min(labels.size(), classes.size()); i++) {
            right += (labels.isFloat() ? labels.floatAt(i) : labels.longAt(i)) == classes.longAt(i) ? 1 : 0;
        }
        long first = classes.longAt(0);
        String name = found.labels().isEmpty() ? String.valueOf(first) : found.labels().get((int) first);
        return getString(model.trained() ? R.string.predicted : R.string.predicted_untrained, right, classes.size(), name);
    }

    private void refresh() {
        AgentConfig config = null;
        String who = getString(R.string.not_joined);
        try {
            config = Membership.config(this);
            if (config != null) {
                who = getString(R.string.joined, config.device, config.fleet, config.url);
                ClientCertificate own = Membership.certificate(this);
                who += own == null ? "" : "\n" + getString(R.string.certificate, own.said(Instant.now()));
            }
        } catch (SedgeException | IOException error) {
            who = error.getMessage();
        }
        RoundLog log = Membership.log(this);
        text(R.id.who, who);
        text(R.id.now, log.now());
        findViewById(R.id.train).setEnabled(config != null);
        List<String> found = new ArrayList<String>();
        for (RoundLog.Round round : log.rounds()) {
            found.add(described(round));
        }
        if (!found.equals(shown)) {
            shown.clear();
            shown.addAll(found);
            rounds.notifyDataSetChanged();
        }
    }

    private String described(RoundLog.Round round) {
        String when = DateUtils.formatDateTime(
                this, round.time, DateUtils.FORMAT_SHOW_DATE | DateUtils.FORMAT_SHOW_TIME);
        String title = getString(R.string.round, round.round, round.run, when);
        String result = !round.reason.isEmpty()
                ? getString(R.string.declined, round.reason)
                : getString(R.string.measured, round.metric.said(round.before), round.metric.said(round.after),
                        Formatter.formatShortFileSize(this, round.bytesUp),
                        Formatter.formatShortFileSize(this, round.bytesDown));
        return title + "\n" + result;
    }

    private void text(int view, String text) {
        ((TextView) findViewById(view)).setText(text);
    }
}
