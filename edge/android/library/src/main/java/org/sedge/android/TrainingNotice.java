package org.sedge.android;

import android.app.Notification;
import android.app.NotificationChannel;
import android.app.NotificationManager;
import android.app.PendingIntent;
import android.app.Service;
import android.content.Context;
import android.content.Intent;

/** The notification that a phone shows while it trains. Showing it makes the service a foreground service. */
final class TrainingNotice implements AutoCloseable {
    private static final String CHANNEL = "sedge.training";
    private static final int ID = 0x5ed6e;

    private final Service service;
    private final NotificationManager manager;

    TrainingNotice(Service service) {
        this.service = service;
        manager = (NotificationManager) service.getSystemService(Context.NOTIFICATION_SERVICE);
    }

    void show(String text) {
        manager.createNotificationChannel(
                new NotificationChannel(CHANNEL, "Training", NotificationManager.IMPORTANCE_LOW));
        Notification notification = new Notification.Builder(service, CHANNEL)
                .setSmallIcon(android.R.drawable.stat_notify_sync)
                .setContentTitle("Training on this phone")
                .setContentText(text)
                .setContentIntent(opensTheApp())
                .setOngoing(true)
                .build();
        try {
            service.startForeground(ID, notification);
        } catch (IllegalStateException | SecurityException refused) {
            // From API 31 on, Android might not allow a job to start a foreground service. For API 34, the app must
            // also declare the service's type. If Android refuses, the job runs in the background with the same
            // notification.
            manager.notify(ID, notification);
        }
    }

    @Override
    public void close() {
        service.stopForeground(true);
        manager.cancel(ID);
    }

    private PendingIntent opensTheApp() {
        Intent intent = service.getPackageManager().getLaunchIntentForPackage(service.getPackageName());
        return intent == null ? null : PendingIntent.getActivity(service, 0, intent, PendingIntent.FLAG_IMMUTABLE);
    }
}
