//! What killed processes have left on the NICs of a network namespace.

use crate::error::{ClaimError, JoinError};
use crate::folder::{self, Folder, RUN_DIR};
use crate::nic::{AttachMode, Nic};
use crate::pins::Pins;

/// Why a NIC could not be swept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Claims(#[from] ClaimError),
}

/// Takes away what killed processes left on each NIC of the calling thread's network namespace
/// that was ever joined: claims, and the program and its names where no process uses the NIC.
/// Nothing is attached for it. What went wrong comes back, with the other NICs swept.
pub(crate) fn sweep() -> Vec<SweepError> {
    let folder = |source| JoinError::Folder { path: RUN_DIR.into(), source };
    match folder::known() {
        Ok(known) => known.into_iter().filter_map(|ifindex| sweep_nic(ifindex).err()).collect(),
        Err(error) => vec![folder(error).into()],
    }
}

fn sweep_nic(ifindex: u32) -> Result<(), SweepError> {
    let key = folder::key(ifindex).map_err(JoinError::os("asking for the network namespace"))?;
    let no_folder = |source| JoinError::Folder { path: RUN_DIR.into(), source };
    let pins = Pins::find(&key);
    let folder = Folder::open(key).map_err(no_folder)?;
    let Some(gate) = folder.lock().map_err(no_folder)? else {
        return Err(JoinError::Busy { path: folder.lock_path() }.into());
    };
    let users = folder.users(&gate).map_err(no_folder)?;
    if users.is_alone(&gate) {
        if let Some(pins) = pins {
            pins.take_off();
        }
        folder.remove(gate);
        return Ok(());
    }
    drop((users, gate));
    // A process that uses it has the program there.
    Ok(Nic::join(ifindex, AttachMode::Auto)?.sweep()?)
}
