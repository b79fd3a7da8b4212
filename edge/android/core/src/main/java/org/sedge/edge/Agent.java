package org.sedge.edge;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.Programs;
import org.sedge.edge.backends.Sandbox;
import org.sedge.edge.backends.Trials;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Journal;
import org.sedge.edge.host.Link;
import org.sedge.edge.host.LockFile;
import org.sedge.edge.host.Machine;
import org.sedge.edge.host.WebSpan;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.rounds.Abilities;
import org.sedge.edge.rounds.AgentCore;
import org.sedge.edge.rounds.Downloader;
import org.sedge.edge.rounds.Effects;
import org.sedge.edge.rounds.Keyring;
import org.sedge.edge.training.JobRunner;
import org.sedge.edge.training.JobStopped;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Messages.Hello;

import java.io.File;
import java.security.SecureRandom;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Runs one device of a fleet inside an app. It connects, trains when the coordinator orders it, and sends its updates.
 *
 * <p>One thread runs the agent, a second one reads from the link, and a third one trains. The other two pass their
 * results to the first as tasks, so no locks are needed. An agent can be run only once.
 */
public final class Agent {
    public static final String VERSION = "0.2.0";

    private static final Logger LOG = Logger.getLogger("org.sedge.edge");
    private static final double TEST_FRACTION = 0.2;
    /** After the coordinator's welcome, a device counts as idle once no order has arrived for this long. */
    private static final double SETTLE_S = 5;
    /**
     * How long {@link #stop} checks whether the link is stuck and must be cut. After that, the link's own timeout ends
     * it.
     */
    private static final int WATCHED_S = 120;

    private final AgentListener listener;
    private final File stateFolder;
    private final KeptCertificate certificate;
    private final AgentCore core;
    private final JobRunner runner;
    private final Link link;
    private final LockFile lock;
    private final SecureRandom random = new SecureRandom();
    /** Small, because each task may hold a chunk: if the link is faster than the disk, the link must wait. */
    private final BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>(16);
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile boolean stopping;
    private volatile boolean idle;
    private final BooleanSupplier isStopping = new BooleanSupplier() {
        @Override
        public boolean getAsBoolean() {
            return stopping || core.mustStop(Link.now());
        }
    };
    private double quietSince = Double.NaN;
    private Thread worker;
    private WebSpan download;

    /**
     * Opens the device's state in its folder.
     *
     * @param stateFolder must not be used by anything else
     * @param backends the available runtimes, in order of preference; a bundle uses the first one for which it has
     *     programs
     * @param sandbox tries out each bundle's programs before they run in this process
     * @throws SedgeException if the examples cannot be split into a training and a test part, or if the folder cannot
     *     be used, holds damaged state, or is in use by another agent
     */
    public Agent(AgentConfig config, File stateFolder, List<Backend> backends, Sandbox sandbox,
            Examples examples, AgentListener listener) throws SedgeException {
        this.listener = listener;
        this.stateFolder = stateFolder;
        certificate = new KeptCertificate(config, stateFolder);
        Examples[] parts = examples.split(TEST_FRACTION, 0);
        File programs = new File(stateFolder, "programs");
        Disk.makeFolder(programs);
        lock = locked(stateFolder);
        boolean opened = false;
        Keyring keys;
        AgentConfig newest;
        try {
            newest = certificate.newest();
            keys = keyring(config, stateFolder);
            BlobFolder blobs = new BlobFolder(stateFolder, config.limits.diskShare);
            Trials trials = new Trials(stateFolder, sandbox, blobs);
            runner = new JobRunner(blobs, new Programs(programs, backends, trials), parts[0], parts[1]);
            core = new AgentCore(config.fleet, config.device, keys, hello(newest, backends, parts), blobs,
                    new Journal(new File(stateFolder, "journal")), random, System.currentTimeMillis() / 1000,
                    config.limits, config.pinned, new Shell(), listener);
            core.allow(new Web(config.downloads));
            opened = true;
        } finally {
            if (!opened) {
                lock.close();
            }
        }
        if (newest.certificate != null) {
            Instant now = Instant.now();
            Level level = newest.certificate.isValid(now) ? Level.INFO : Level.WARNING;
            LOG.log(level, "the certificate for the broker: " + newest.certificate.said(now));
        }
        link = new Link(newest, keys.keys().password, core.upTopic(), core.downTopic(), new Ends(), random, tasks);
    }

    /** Returns the keys of the device whose state is in this folder. */
    static Keyring keyring(AgentConfig config, File stateFolder) throws StorageError {
        return new Keyring(config.secret(), config.fleet, config.device, new Journal(new File(stateFolder, "keys")));
    }

    private static Hello hello(AgentConfig config, List<Backend> backends, Examples[] parts) {
        List<String> words = new ArrayList<>(Abilities.CODECS);
        words.add("renew");
        List<String> names = new ArrayList<>();
        for (Backend backend : backends) {
            names.add(backend.name());
        }
        return Hello.SCHEMA.empty().with(Hello.NONCE, new byte[16]).with(Hello.VERSION, "java " + VERSION)
                .with(Hello.BACKENDS, names).with(Hello.CODECS, words)
                .with(Hello.NUM_TRAIN, (long) parts[0].count()).with(Hello.NUM_TEST, (long) parts[1].count())
                .with(Hello.MEMORY_MB, Machine.memoryMb())
                .with(Hello.CERTIFICATE, config.certificate == null ? new byte[0] : config.certificate.name());
    }

    private static LockFile locked(File folder) throws StorageError {
        File file = new File(folder, "lock");
        LockFile lock = LockFile.tryTake(file);
        if (lock == null) {
            String holder = LockFile.heldHere(file) ? "this process" : "another process";
            throw new StorageError(folder + ": " + holder + " is using this state folder", null);
        }
        return lock;
    }

    /** Runs the agent until {@link #stop} is called. */
    public void run() throws SedgeException {
        work(Double.POSITIVE_INFINITY, false);
    }

    /**
     * Runs the agent until it has nothing to do, {@link #stop} is called, or the time is up.
     *
     * @return true if there is nothing left to do
     */
    public boolean runUntilIdle(long maxMillis) throws SedgeException {
        work(Link.now() + maxMillis / 1000.0, true);
        return idle;
    }

    /**
     * Makes {@link #run} return; call it from another thread. Training stops at its next step and continues from there
     * in the next run. A link that accepts no bytes is cut.
     */
    public void stop() {
        stopping = true;
        tasks.offer(new Runnable() { // wakes up the agent's thread
            @Override
            public void run() { }
        });
        Thread watch = new Thread("sedge-stop") {
            @Override
            public void run() {
                try {
                    for (int second = 0; second < WATCHED_S && !ended.await(1, TimeUnit.SECONDS); second++) {
                        link.cutIfStuck();
                    }
                } catch (InterruptedException error) {
                    interrupt(); // unexpected; the link's own timeout then ends the run
                }
            }
        };
        watch.setDaemon(true);
        watch.start();
    }

    /**
     * Leaves the fleet permanently: notifies the coordinator, which then ignores the device, and deletes everything in
     * the state folder, including models. The caller must delete the secret. If another agent is still stopping, this
     * method waits for it.
     *
     * @return true if the coordinator answered in time; otherwise its operator must revoke the device
     * @throws SedgeException if an agent still uses the folder, or the disk fails
     */
    public static boolean leave(AgentConfig config, File stateFolder, long maxMillis) throws SedgeException {
        return Leaving.leave(config, stateFolder, maxMillis);
    }

    /** Returns true if the coordinator has welcomed the device, and no order or update has been pending for a while. */
    public boolean idle() {
        return idle;
    }

    private void work(double deadline, boolean untilIdle) throws SedgeException {
        try {
            while (!stopping && Link.now() < deadline && !(untilIdle && idle)) {
                double now = Link.now();
                link.keep();
                core.poll(now);
                noteIdle(now);
                double due = Math.min(Math.min(deadline, now + 1), Double.isNaN(core.timer()) ? now + 1 : core.timer());
                next(Math.max(due - Link.now(), 0));
            }
            if (!stopping) {
                stop();
            }
            while (worker != null) { // training ends at its next step
                next(1);
            }
            core.goodbye();
        } finally {
            stopping = true;
            stopDownload();
            link.close();
            abandonWorker();
            ended.countDown();
            lock.close();
        }
    }

    /**
     * After an internal error, waits for training that is still running, because it writes to the folder until its next
     * step.
     */
    private void abandonWorker() {
        boolean interrupted = false;
        while (worker != null && worker.isAlive()) {
            try {
                tasks.poll(1, TimeUnit.SECONDS); // makes room for the result of the training
            } catch (InterruptedException error) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Runs the tasks in the queue. If there are none, waits up to this long for one. */
    private void next(double seconds) {
        try {
            Runnable task = tasks.poll((long) (seconds * 1000) + 1, TimeUnit.MILLISECONDS);
            for (int done = 0; task != null && done < 64; done++) {
                task.run();
                task = tasks.poll();
            }
            if (task != null) {
                task.run();
            }
        } catch (InterruptedException error) { // the thread's owner is asking it to stop
            stopping = true;
        }
    }

    private void noteIdle(double now) {
        boolean quiet = core.welcomed() && core.idle() && worker == null;
        quietSince = !quiet ? Double.NaN : Double.isNaN(quietSince) ? now : quietSince;
        idle = quiet && now - quietSince >= SETTLE_S;
    }

    /** Passes the link's events to the core. */
    private final class Ends implements Link.Owner {
        @Override
        public byte[] will() {
            return core.will();
        }

        @Override
        public void connected() {
            core.connected(Link.now(), Frame.MAX_PACKET);
        }

        @Override
        public void received(String topic, byte[] payload) {
            core.receive(topic, payload, Link.now());
        }

        @Override
        public void disconnected(String reason) {
            core.disconnected();
            String other = Link.isUnknownAccount(reason) ? core.otherPassword() : null;
            if (other != null) {
                link.usePassword(other);
            }
            listener.disconnected(reason);
        }

        @Override
        public long fleetDevices() {
            return core.fleetDevices();
        }
    }

    /** Carries out the core's requests. */
    private final class Shell implements Effects {
        @Override
        public void send(String topic, byte[] payload) {
            link.send(topic, payload);
        }

        @Override
        public void subscribe(String topic) {
            link.subscribe(topic);
        }

        @Override
        public void unsubscribe(String topic) {
            link.unsubscribe(topic);
        }

        @Override
        public void keepCertificate(byte[] der) {
            try {
                AgentConfig renewed = certificate.replace(der);
                link.useCertificateOf(renewed);
                core.certified(renewed.certificate.name(), Link.now());
                note(Level.INFO, "the coordinator has renewed the certificate for the broker: "
                        + renewed.certificate.said(Instant.now()));
            } catch (SedgeException error) {
                note(Level.SEVERE, error.getMessage());
            }
        }

        @Override
        public void note(Level level, String text) {
            LOG.log(level, text);
            if (level.intValue() >= Level.WARNING.intValue()) {
                listener.trouble(text);
            }
        }

        @Override
        public void start(final Job job) {
            if (stopping) { // nothing is lost: the order stays on disk
                core.interrupted(job.checkpoint);
                return;
            }
            worker = new Thread("sedge-training") {
                @Override
                public void run() {
                    boolean handed = false;
                    for (Runnable ended = ended(job); !handed;) {
                        try {
                            tasks.put(ended);
                            handed = true;
                        } catch (InterruptedException error) { // unexpected; its result is still needed, so keep trying
                            LOG.log(Level.WARNING, "the thread of a training was interrupted", error);
                        }
                    }
                }
            };
            worker.setDaemon(true);
            worker.start();
        }

        /** Runs the job. Returns a task that reports the result to the core. */
        private Runnable ended(Job job) {
            try {
                return new Ended(runner.run(job, isStopping), null, null);
            } catch (JobStopped stop) {
                return new Ended(null, stop, null);
            } catch (SedgeException error) {
                return new Ended(null, null, error);
            } catch (RuntimeException | Error error) { // a bug in a backend must not crash the app
                LOG.log(Level.SEVERE, "a job failed", error);
                return new Ended(null, null, new CodecError("a backend failed: " + error, error));
            }
        }
    }

    private void stopDownload() {
        if (download != null) {
            download.stop();
        }
        download = null;
    }

    /** Downloads from web servers, in a separate thread. */
    private final class Web implements Downloader {
        private static final long CLOSED_CHECK_MS = 200;
        private final Downloads allowed;

        Web(Downloads allowed) {
            this.allowed = allowed;
        }

        @Override
        public boolean permits(String url) {
            return allowed.permits(url);
        }

        @Override
        public void stop() {
            stopDownload();
        }

        @Override
        public void fetch(final Span span) {
            stopDownload();
            if (stopping) { // no one would receive the chunks
                return;
            }
            final WebSpan begun = new WebSpan(span, allowed);
            download = begun;
            Thread thread = new Thread("sedge-http") {
                @Override
                public void run() {
                    String error = begun.fetch(new WebSpan.Taker() {
                        @Override
                        public boolean chunk(int index, byte[] data) {
                            return hand(begun, new Part(span.number, index, data, null));
                        }
                    });
                    hand(begun, new Part(span.number, -1, null, error));
                }
            };
            thread.setDaemon(true);
            thread.start();
        }

        /** Waits for room in the queue. Returns false if the download has been stopped in the meantime. */
        private boolean hand(WebSpan begun, Runnable part) {
            try {
                while (!begun.stopped()) {
                    if (tasks.offer(part, CLOSED_CHECK_MS, TimeUnit.MILLISECONDS)) {
                        return true;
                    }
                }
            } catch (InterruptedException error) { // unexpected; the core's own timeout then ends the download
                Thread.currentThread().interrupt();
            }
            return false;
        }
    }

    /** Reports a downloaded chunk to the core or, if there is no chunk, the end of a span. */
    private final class Part implements Runnable {
        private final int number;
        private final int index;
        private final byte[] data;
        private final String error;

        Part(int number, int index, byte[] data, String error) {
            this.number = number;
            this.index = index;
            this.data = data;
            this.error = error;
        }

        @Override
        public void run() {
            if (data == null) {
                core.fetchEnded(number, error, Link.now());
            } else {
                core.fetched(number, index, data, Link.now());
            }
        }
    }

    /** Reports the end of a job to the core. Exactly one of the three fields is set. */
    private final class Ended implements Runnable {
        private final Outcome outcome;
        private final JobStopped stop;
        private final SedgeException error;

        Ended(Outcome outcome, JobStopped stop, SedgeException error) {
            this.outcome = outcome;
            this.stop = stop;
            this.error = error;
        }

        @Override
        public void run() {
            worker = null;
            if (outcome != null) {
                core.finished(outcome, Link.now());
            } else if (stop != null) {
                core.interrupted(stop.checkpoint);
            } else {
                core.failed(error, Link.now());
            }
        }
    }
}
