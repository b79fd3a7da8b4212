package org.sedge.edge.backends;

import org.sedge.edge.SedgeException;
import org.sedge.edge.host.BlobFolder;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Npz;
import org.sedge.edge.jobs.Job;
import org.sedge.edge.jobs.Kept;
import org.sedge.edge.jobs.Outcome;
import org.sedge.edge.training.JobRunner;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Order;

import java.io.File;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.util.Collections;

/**
 * Works on orders of one run, one after another: {@code FOLDER TRAIN.npz TEST.npz BACKEND-CLASS ORDER…}. FOLDER
 * contains the blobs. A file of examples among the orders replaces the training examples from there on. The system
 * property {@code sedge.sandbox} names the class that tries out programs, and {@code sedge.trial_ms} is its timeout.
 *
 * <p>Prints the name of each update, or why there is none. Then prints three sizes in bytes: the heap in use after a
 * garbage collection, the JVM's largest heap, and the memory of direct buffers.
 */
public final class DoOrders {
    private DoOrders() {}

    public static void main(String[] words) throws Exception {
        File folder = new File(words[0]);
        BlobFolder blobs = new BlobFolder(folder, 1);
        Backend backend = (Backend) Class.forName(words[3]).getDeclaredConstructor().newInstance();
        File files = new File(folder, "programs");
        Disk.makeFolder(files);
        Sandbox sandbox = (Sandbox) Class.forName(System.getProperty("sedge.sandbox", Trusting.class.getName()))
                .getDeclaredConstructor().newInstance();
        Trials trials = new Trials(folder, sandbox, blobs, Long.getLong("sedge.trial_ms", 300_000));
        Programs programs = new Programs(files, Collections.singletonList(backend), trials);
        JobRunner runner = new JobRunner(
                blobs, programs, Npz.read(new File(words[1])), Npz.read(new File(words[2])));
        Kept kept = Kept.SCHEMA.empty();
        for (int i = 4; i < words.length; i++) {
            if (words[i].endsWith(".npz")) {
                runner = new JobRunner(blobs, programs, Npz.read(new File(words[i])), Npz.read(new File(words[2])));
                continue;
            }
            try {
                Outcome outcome = runner.run(
                        new Job(Order.SCHEMA.decode(Disk.read(new File(words[i]))), kept, null, 0), () -> false);
                kept = outcome.kept;
                System.out.println(Hex.encode(outcome.update));
            } catch (SedgeException error) {
                System.out.println(error.getMessage());
            }
        }
        long buffers = 0;
        for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
            buffers += pool.getMemoryUsed();
        }
        long taken = Runtime.getRuntime().totalMemory();
        System.gc();
        long used = Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
        System.out.println("heap " + used + " of " + taken + ", buffers " + buffers);
    }
}
