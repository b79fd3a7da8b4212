package org.sedge.android;

import android.app.job.JobParameters;

import org.sedge.edge.Examples;
import org.sedge.edge.PersonalModel;
import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.host.Npz;
import org.sedge.executorch.JvmExecutorch;

import java.io.File;
import java.io.IOException;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * Runs jobs as a phone that is always ready to train: {@code JOIN-TEXT DATA.npz}. The first job is stopped at once, the
 * others run one after another. Prints the log after each job.
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

    /** Prints the model's outputs for the first example, or why there are none. */
    private static void predict(RunJobs service) throws IOException, SedgeException {
        try (PersonalModel model = Model.open(service, null, service.backends())) {
            float[] outputs = model.predict(Npz.read(data).inputs).floats();
            System.out.println("predicts " + Arrays.toString(Arrays.copyOf(outputs, 10)) + " " + model.trained());
        } catch (SedgeException.ConfigError none) {
            System.out.println("predicts nothing: " + none.getMessage());
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
            predict(service);
            RoundLog log = Membership.log(service);
            System.out.println(log.now());
            for (RoundLog.Round round : log.rounds()) {
                System.out.println("round " + round.round + " of " + round.run + ": " + round.before + " "
                        + round.after + " " + round.bytesUp + " " + round.bytesDown + " " + round.reason);
            }
        }
    }
}
