package com.example.walks

import android.content.Context
import org.sedge.android.Membership
import org.sedge.android.Model
import org.sedge.android.RoundLog
import org.sedge.edge.Rows

/** What kind of walk each window of 13 numbers is, by this phone's own model. Not for the main thread. */
fun kinds(context: Context, windows: FloatArray): List<String> =
    Model.open(context).use { model ->
        val found = model.classify(Rows(windows, 13L))
        found.classes().longs().map { found.labels().getOrElse(it.toInt()) { number -> "$number" } }
    }

/** Calls a screen after each change of what the phone does in its fleet, until the result is closed. */
fun watch(context: Context, show: (now: String, last: RoundLog.Round?) -> Unit): RoundLog.Subscription {
    val log = Membership.log(context)
    return log.listen { show(log.now(), log.rounds().firstOrNull()) }
}

/** Ends this phone's part in the fleet; false where the coordinator has not heard it. Not for the main thread. */
fun leave(context: Context): Boolean = Membership.leave(context)
