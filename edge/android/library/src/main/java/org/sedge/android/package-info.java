/** Makes a phone a device of a fleet: its membership, its training jobs and its model. */
@NullMarked
package org.sedge.android;

import org.jspecify.annotations.NullMarked;
