/** A phone as a device of a fleet: its membership, its jobs, its model. */
@NullMarked
package org.sedge.android;

import org.jspecify.annotations.NullMarked;
