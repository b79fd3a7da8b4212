package org.sedge.android;

import android.app.job.JobParameters;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.host.Npz;
import org.sedge.executorch.JvmExecutorch;

import java.io.File;
import java.io.IOException;
import java.util.Collections;
import java.util.List;

/**
 * A phone whose conditions always hold but for the first job, which is stopped at once: {@code JOIN-TEXT DATA.npz}. One
 * job after the other, and the log after each.
 */
public final class RunJobs extends TrainingService {
    private static File data;

    @Override
    protected Examples examples() throws SedgeException {
        return Npz.read(data);
    }

    @Override
    protected List<Backend> backends() {
        try {
            return Collections.<Backend>singletonList(new JvmExecutorch());
        } catch (BackendException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] words) throws IOException, SedgeException, InterruptedException {
        data = new File(words[1]);
        RunJobs service = new RunJobs();
        Membership.join(service, words[0]);
        for (int number = 1; true; number++) {
            if (!service.onStartJob(new JobParameters(number)) || service.onStartJob(new JobParameters(0))) {
                throw new IllegalStateException("expected one job at a time");
            }
            service.onStopJob(new JobParameters(number == 1 ? 1 : 0));
            service.finished.acquire();
            RoundLog log = Membership.log(service);
            System.out.println(log.now());
            for (RoundLog.Round round : log.rounds()) {
                System.out.println("round " + round.round + " of " + round.run + ": " + round.before + " "
                        + round.after + " " + round.bytesUp + " " + round.bytesDown + " " + round.reason);
            }
        }
    }
}
