package org.sedge.app;

import android.app.Activity;
import android.content.Intent;
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
import org.sedge.android.RoundLog;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.SedgeException;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** What this phone does in its fleet: now, and round by round. */
public final class StatusActivity extends Activity {
    private static final long EVERY_MILLIS = 1000;

    private final Handler handler = new Handler(Looper.getMainLooper());
    private final Runnable refresh = new Runnable() {
        @Override
        public void run() {
            refresh();
            handler.postDelayed(this, EVERY_MILLIS);
        }
    };
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
        handler.post(refresh);
    }

    @Override
    protected void onPause() {
        handler.removeCallbacks(refresh);
        super.onPause();
    }

    private void refresh() {
        AgentConfig config = null;
        String who = getString(R.string.not_joined);
        try {
            config = Membership.config(this);
            if (config != null) {
                who = getString(R.string.joined, config.device, config.fleet, config.url);
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
