// What the library shows to others. All else is hidden (-fvisibility=hidden), so that two copies in
// one process, say of two versions, share neither code nor threads.
#pragma once

#define KSTEP_API extern "C" __attribute__((visibility("default")))
